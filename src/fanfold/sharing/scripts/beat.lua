-- Says that a sharer lives.  KEYS: alive, and who of each limit.  ARGV: me, seconds it counts as alive; 0: it leaves.
-- Returns how many sharers each limit has.
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
local stays = tonumber(ARGV[2]) > 0
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - 60)
if stays then
  redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
  redis.call('EXPIRE', KEYS[1], 600)
else
  redis.call('ZREM', KEYS[1], ARGV[1])
end
local counts = {}
for number = 2, #KEYS do
  redis.call('ZREMRANGEBYSCORE', KEYS[number], '-inf', now - 10)
  if stays then
    redis.call('ZADD', KEYS[number], now, ARGV[1])
    redis.call('EXPIRE', KEYS[number], 600)
  else
    redis.call('ZREM', KEYS[number], ARGV[1])
  end
  counts[number - 1] = redis.call('ZCARD', KEYS[number])
end
return counts
