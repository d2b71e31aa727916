#pragma once
// The messages of a pipeline schedule: who talks to whom, and where in each stage's list. All sends
// and receives of every schedule come from one function, which reads them off the compute order.
#include <cstddef>

#include "choir/parallel/schedule.hpp"

namespace choir {

/// The stage at the other end of a communication of `stage`; -1 if there is none, as for the
/// activation that enters the first virtual stage. With one stage it is the stage itself.
int peer_of(const PipelineShape& shape, int stage, const Action& action);

/// Number of the message in [0, message_count): the same at both ends, no two alike (a tag).
std::size_t message_of(const PipelineShape& shape, int stage, const Action& action);
std::size_t message_count(const PipelineShape& shape);

/// The schedule with its sends and receives. Every message gets one instant of the nominal timeline
/// (forward 1, backward 2 or 1 + 1, messages free): under overlapped exchange when it is produced,
/// else as late as its use allows, if possible when neither end computes. Both ends list it by that
/// instant, so all lists follow one global order: the earliest message not yet done can always
/// proceed, whatever the real durations are. All communication between two computations is joined,
/// which only posts it earlier. Throws Error when the compute order waits for itself.
Schedule with_communication(const Schedule& compute_order);

}  // namespace choir
