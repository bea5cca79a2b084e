-- Assignment of partitions to members. The members' shares differ by at most one.

-- In contiguous ranges, by the order in which members joined.
local function contiguous(count, order)
  local assigned, next = {}, 0
  local base, extra = math.floor(count / #order), count % #order
  for at = 1, #order do
    for _ = 1, base + (at <= extra and 1 or 0) do
      assigned[next] = at
      next = next + 1
    end
  end
  return assigned
end

-- With the fewest moves: members with the most partitions keep the most.
-- before: the member of each partition, from 0; nil if it has none.
local function sticky(count, order, before)
  local place, has = {}, {}
  for at, member in ipairs(order) do
    place[member], has[at] = at, 0
  end
  local assigned = {}
  for partition = 0, count - 1 do
    local at = before[partition] and place[before[partition]]
    if at then
      assigned[partition] = at
      has[at] = has[at] + 1
    end
  end
  local rank = {}
  for at = 1, #order do
    rank[at] = at
  end
  table.sort(rank, function(a, b)
    return has[a] > has[b] or (has[a] == has[b] and a < b)
  end)
  local base, extra = math.floor(count / #order), count % #order
  local quota = {}
  for by, at in ipairs(rank) do
    quota[at] = base + (by <= extra and 1 or 0)
  end
  local free = {}
  for partition = 0, count - 1 do
    local at = assigned[partition]
    if at and quota[at] > 0 then
      quota[at] = quota[at] - 1
    else
      free[#free + 1] = partition
    end
  end
  local at = 1
  for _, partition in ipairs(free) do
    while quota[at] == 0 do
      at = at + 1
    end
    assigned[partition] = at
    quota[at] = quota[at] - 1
  end
  return assigned
end
