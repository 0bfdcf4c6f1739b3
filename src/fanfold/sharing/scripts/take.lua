-- Claims a call; gives its reply if there is one, 1 if it is claimed, 0 while another sharer makes it.
-- KEYS: call, waiting, alive.  ARGV: me, seconds a claim is kept.
local value = redis.call('GET', KEYS[1])
if value and value:sub(1, 1) ~= '@' then return value end
if value and value ~= '@' .. ARGV[1] then
  local seen = redis.call('ZSCORE', KEYS[3], value:sub(2))
  if seen and tonumber(seen) > tonumber(redis.call('TIME')[1]) then
    redis.call('SADD', KEYS[2], ARGV[1])
    redis.call('EXPIRE', KEYS[2], 600)
    return 0
  end
end
redis.call('SET', KEYS[1], '@' .. ARGV[1], 'EX', ARGV[2])
return 1
