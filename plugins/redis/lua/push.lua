-- Store jobs, all or none: ARGV for each one text of ORDER and one of REST of a record.
-- Gives, one after the other, the places (from 0) of jobs whose unique key another job has, and
-- the ids of those; or 'raise', the place, and the id, where that is to be an error.
--@include _record
local orders = {}
for at = 1, #ARGV, 2 do orders[#orders + 1] = at end
--@include _push
return answer
