-- Workers of one queue, for wrk: claim 8, ack what came, claim again. A claimed batch is acked by whichever connection
-- is next; a worker is a node name, and all use the same one, so that any of them may.
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"

local claim
local todo, first, last = {}, 1, 0

init = function(args)
  claim = wrk.format("POST", "/v0/topics/q/claim", nil, '{"node":"w","max":8}')
end

request = function()
  if first <= last then
    local seqs = todo[first]
    todo[first] = nil
    first = first + 1
    return wrk.format("POST", "/v0/topics/q/ack", nil, '{"node":"w","seqs":[' .. seqs .. "]}")
  end
  return claim
end

response = function(status, headers, body)
  if body:find('"claimed"', 1, true) then
    local seqs = {}
    for seq in body:gmatch('"%$seq":(%d+)') do seqs[#seqs + 1] = seq end
    if #seqs > 0 then
      last = last + 1
      todo[last] = table.concat(seqs, ",")
    end
  end
end

dofile(debug.getinfo(1, "S").source:match("@(.*/)") .. "figures.lua")
