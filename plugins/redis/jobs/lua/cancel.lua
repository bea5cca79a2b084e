-- Cancels waiting jobs and requests the stop of running ones: ARGV most finished and most failed
-- jobs to keep, then ids. Returns a letter for each: c cancelled, a asked, f finished, u unknown; for
-- fewer ids than requested if the records are large.
--@include _record
--@include _free
--@include _retire
local answer = {}
for _, id, text in each({unpack(ARGV, 3)}) do
  local job = text and read(text, id)
  if not job then
    answer[#answer + 1] = 'u'
  elseif job.state > HELD then
    answer[#answer + 1] = 'f'
  elseif job.state == RUNNING then
    if job.stop == 0 then
      job.stop = now
      move(job, id)
    end
    redis.call('SADD', tag .. ':stop:' .. job.worker, id)
    publish('s:' .. hex(id))
    answer[#answer + 1] = 'a'
  else
    leave(job, id)
    job.state, job.finished = CANCELLED, now
    if retire(job, id) then move(job, id) end
    answer[#answer + 1] = 'c'
  end
end
write_ends(tonumber(ARGV[1]), tonumber(ARGV[2]))
write_counts()
return answer
