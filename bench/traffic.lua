-- The requests of one measurement, for wrk. What to send comes in the environment (load.py), because wrk decides while it
-- loads this file, before arguments arrive, whether every request is the same.
local method, path = os.getenv("BENCH_METHOD"), os.getenv("BENCH_PATH")
local span = tonumber(os.getenv("BENCH_SPAN"))
local step = tonumber(os.getenv("BENCH_STEP"))
local first = tonumber(os.getenv("BENCH_FIRST"))
local done = tonumber(os.getenv("BENCH_DONE"))
local file = io.open(os.getenv("BENCH_BODY"), "rb")
local body = file:read("*a")
file:close()

wrk.method = method
wrk.headers["Content-Type"] = "application/json"

if span == 0 then
  wrk.path = path
  if #body > 0 then wrk.body = body end
else
  local function around(text)
    local at = text:find("{n}", 1, true)
    if not at then return text, nil end
    return text:sub(1, at - 1), text:sub(at + 3)
  end
  local path_head, path_tail = around(path)
  local body_head, body_tail = around(body)
  local at = done * step % span
  request = function()
    local n = first + at
    at = (at + step) % span
    local target = path_tail and (path_head .. n .. path_tail) or path_head
    local content = body_tail and (body_head .. n .. body_tail) or body_head
    return wrk.format(method, target, nil, #content > 0 and content or nil)
  end
end

dofile(debug.getinfo(1, "S").source:match("@(.*/)") .. "figures.lua")
