#pragma once
// The end of communication, for a process that gives up.

namespace choir {

/// Local, from any thread: the kernels of NCCL that wait for peers end, and every later call on
/// their communicators throws. False when that took longer than `seconds`.
bool abort_communicators(double seconds);

}  // namespace choir
