#pragma once
// Recording of the calls of null communicators in the journal of a planned step. It has a header of
// its own, so that only the planner and the null communicators depend on journals.
#include "choir/comm/communicator.hpp"
#include "choir/device/work_journal.hpp"

namespace choir {

/// Records every later call in `journal` as a call of group number `group`; nullptr stops the
/// recording. Does nothing for a communicator that is not of Mesh::planned, or has one rank. Local.
void journal_calls(Communicator& communicator, WorkJournal* journal, int group);

/// Later calls on these bytes, which a device allocated in a plan, are recorded as calls on memory
/// that the communicator allocated. Does nothing for a communicator that is not of Mesh::planned.
/// Local.
void count_as_allocated(Communicator& communicator, const void* data, std::size_t bytes);

}  // namespace choir
