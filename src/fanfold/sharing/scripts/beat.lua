-- Says that a sharer lives.  KEYS: alive, and who of each limit.  ARGV: seconds it counts as alive (0: it leaves), and
-- its name in each of them.  Returns how many sharers each has.
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
local alive = tonumber(ARGV[1])
local counts = {}
for number, key in ipairs(KEYS) do
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now - (number > 1 and 10 or 0))
  if alive > 0 then
    redis.call('ZADD', key, now + (number > 1 and 0 or alive), ARGV[number + 1])
    redis.call('EXPIRE', key, 600)
  else
    redis.call('ZREM', key, ARGV[number + 1])
  end
  counts[number] = redis.call('ZCARD', key)
end
return counts
