-- Claims jobs that were popped from a list: `popped` has ids and scores, `name` is the list, `from` the
-- state of its jobs. Appends id and record of each job to `found`. Returns how many were read, and how
-- many were claimed. Jobs beyond the size limit go back to their positions.
local function take(found, popped, name, from, worker, lease)
  local ids = {}
  for at = 1, #popped, 2 do ids[#ids + 1] = popped[at] end
  local texts, written, taken = fetch(ids), {}, {}
  if #texts < #ids then
    local back = {}
    for at = #texts + 1, #ids do
      back[#back + 1], back[#back + 2] = popped[2 * at], ids[at]
    end
    many('ZADD', name, back)
    ids = {unpack(ids, 1, #texts)}
  end
  for at, id in ipairs(ids) do
    local text = texts[at]
    -- A missing record was deleted by hand, an unreadable one is set aside: there is nothing to run.
    if text and (from == PENDING or string.byte(text, 2) == from) then
      local _, _, flags, attempt, crashes = struct.unpack('>BBBII', text)
      local keyed = flags == UNTIL_CLAIM and read(text, id)
      if keyed then free_key(keyed, id) end
      put(id, text, struct.pack(FRONT, VERSION, RUNNING, flags, attempt + 1, crashes, now, 0, worker,
        lease), written)
      found[#found + 1], found[#found + 2] = id, text
      taken[#taken + 1] = id
    end
  end
  if #written > 0 then redis.call('MSET', unpack(written)) end
  if #taken > 0 then
    redis.call('SADD', tag .. ':w:' .. worker, unpack(taken))
    redis.call('SADD', tag .. ':holders', worker)
  end
  return #ids, #taken
end
