-- Whether machines that make a gate of one name mean the same limits. KEYS: the state. ARGV: the limits in words; for how
-- long after the last call others count; how long to keep them. Returns the others' words, or nothing.
local state = redis.call('HMGET', KEYS[1], 't', 'limits')
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local last = tonumber(state[1] or 0)
if state[2] and state[2] ~= ARGV[1] and now - last < tonumber(ARGV[2]) then return state[2] end
redis.call('HSET', KEYS[1], 'limits', ARGV[1], 't', string.format('%.0f', math.max(now, last)))
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return ''
