#pragma once
// Communicators of any size without other ranks, for jobs larger than this machine. A null
// communicator only counts: data stay unchanged, and blocks are reserved but not touched. In a
// rehearsal every other rank behaves like this one.
#include <memory>
#include <string>

#include "choir/comm/communicator.hpp"
#include "choir/comm/rehearsal.hpp"
#include "choir/device/device.hpp"

namespace choir {

/// traffic() counts calls and bytes as the real communicators do; seconds stay 0. With a device,
/// which must outlive the communicator, blocks are memory of that device. Local.
std::unique_ptr<Communicator> make_null_communicator(const std::string& name, int rank, int size,
                                                     Device* device = nullptr);

/// The same for host memory, with results: sums are sums of equal terms, gathers repeat the data of
/// this rank, broadcasts come from the script of `book`, and messages are zeros. `book` must
/// outlive the communicator. Local.
std::unique_ptr<Communicator> make_rehearsed_communicator(const std::string& name, int rank,
                                                          int size, Rehearsal& book);

}  // namespace choir
