#pragma once
// The calls of null communicators, in the journal of a planned step. By itself, so that only who
// plans and who is planned know of journals.
#include "choir/comm/communicator.hpp"
#include "choir/device/work_journal.hpp"

namespace choir {

/// Local. From now on every call is written into `journal` as one of group number `group`; nullptr:
/// no longer. Nothing happens with a communicator that is not of Mesh::planned, or has one rank.
void journal_calls(Communicator& communicator, WorkJournal* journal, int group);

/// Local. Calls on these bytes, which a device gave in a plan, are written as on memory that the
/// communicator allocated. Nothing happens with one that is not of Mesh::planned.
void count_as_allocated(Communicator& communicator, const void* data, std::size_t bytes);

}  // namespace choir
