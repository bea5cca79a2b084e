-- Forget the marks ARGV: their rows are deleted.
redis.call('ZREM', KEYS[1] .. ':relayed', unpack(ARGV))
