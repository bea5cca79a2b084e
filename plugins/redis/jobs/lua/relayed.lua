-- Deletes the marks ARGV, after their rows were deleted.
redis.call('ZREM', KEYS[1] .. ':relayed', unpack(ARGV))
