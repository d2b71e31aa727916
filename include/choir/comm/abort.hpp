#pragma once
// Aborts the communication of a process that gives up.

namespace choir {

/// Ends the NCCL kernels that wait for peers; every later call on their communicators throws.
/// Returns false if this takes longer than `seconds`. Local, may be called from any thread.
bool abort_communicators(double seconds);

}  // namespace choir
