"""The state of an application; see `fennel.state`."""

from __future__ import annotations

from chancy.plugins.redis.compat.fennel import state
from chancy.plugins.redis.compat.fennel.calls import blocking

count_jobs = blocking(state.count_jobs)
count_results = blocking(state.count_results)
get_groups = blocking(state.get_groups)
get_heartbeats = blocking(state.get_heartbeats)
get_info = blocking(state.get_info)
get_job = blocking(state.get_job)
get_messages = blocking(state.get_messages)
get_result = blocking(state.get_result)
get_schedule = blocking(state.get_schedule)
get_state = blocking(state.get_state)
get_status = blocking(state.get_status)
get_stream = blocking(state.get_stream)
