-- Ends a claim, with a reply or (an empty one) without, and wakes those who wait for it.
-- KEYS: call, waiting, alive.  ARGV: me, reply, seconds it is kept, prefix of inboxes, name of the call.
local kind = redis.call('TYPE', KEYS[1]).ok
local value = kind == 'string' and redis.call('GET', KEYS[1])
local ours = value == '@' .. ARGV[1]
if ARGV[2] ~= '' then
  redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
elseif ours then
  redis.call('DEL', KEYS[1])
else
  return 0
end
for _, other in ipairs(redis.call('SMEMBERS', KEYS[2])) do redis.call('PUBLISH', ARGV[4] .. other, ARGV[5]) end
redis.call('DEL', KEYS[2])
return 1
