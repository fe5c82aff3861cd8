#!/bin/sh
# Installs topics from this checkout, with the versions and hashes of requirements/server.txt:
#
#   deploy/install.sh PREFIX      into a virtual environment at PREFIX; needs Python 3.11 or later and no other right
#                                 than to write there
#   deploy/install.sh --system    as root on Debian: into /opt/topics, with the user `topics`, its data directory
#                                 /var/lib/topics, /etc/topics.env, the command /usr/local/bin/topics and, where there
#                                 is systemd, the units
#
# Without a network, pip's own variables name a directory of wheels (make wheels): PIP_NO_INDEX=1 PIP_FIND_LINKS=DIR.
# A second run upgrades in place; data, keys and settings stay as they are. Nothing is started.
set -eu
source=$(cd "$(dirname "$0")/.." && pwd)

usage() {
    sed -n 's/^# \{0,1\}//; 2,8p' "$0" >&2
    exit 2
}

# The build tools stay outside: what is installed is the server and what it imports.
install_into() {
    prefix=$1
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    echo "installing topics into $prefix" >&2
    [ -x "$prefix/bin/python" ] || "${PYTHON:-python3}" -m venv "$prefix"
    pip="$prefix/bin/python -m pip --disable-pip-version-check --quiet install"
    $pip --require-hashes --target "$scratch/build" -r "$source/requirements/build.txt"
    (cd "$source" && PYTHONPATH="$scratch/build" PYTHONDONTWRITEBYTECODE=1 \
        "$prefix/bin/python" -m hatchling build -t wheel -d "$scratch/wheel") >"$scratch/log" 2>&1 ||
        { cat "$scratch/log" >&2 && exit 1; }
    $pip --require-hashes -r "$source/requirements/server.txt"
    $pip --no-deps --no-index --force-reinstall "$scratch"/wheel/*.whl
    "$prefix/bin/topics" --version
}

prepare_system() {
    if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends python3 python3-venv >/dev/null
        rm -rf /var/lib/apt/lists/*
    fi
    getent passwd topics >/dev/null || useradd --system --home-dir /var/lib/topics --shell /usr/sbin/nologin topics
    install -d -o topics -g topics -m 750 /var/lib/topics
    # Keys belong in here, so nobody else may read it.
    [ -e /etc/topics.env ] || install -m 600 /dev/null /etc/topics.env
    if command -v systemctl >/dev/null; then
        install -m 644 "$source"/deploy/topics*.service "$source"/deploy/topics*.timer /etc/systemd/system/
        install -d -o topics -g topics -m 750 /var/backups/topics
    fi
}

case "${1:-}" in
    --system)
        prepare_system
        install_into /opt/topics
        # For people and scripts; the units name the place itself.
        ln -sfn /opt/topics/bin/topics /usr/local/bin/topics
        if [ -d /run/systemd/system ]; then
            systemctl daemon-reload
            echo "systemctl enable --now topics starts it, systemctl restart topics the new version"
        fi
        ;;
    '' | -*) usage ;;
    *) install_into "$1" ;;
esac
