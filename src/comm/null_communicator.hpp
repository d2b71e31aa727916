#pragma once
// Communicators of any size without other ranks, for a machine that one does not have. A null
// communicator does nothing but count: data stay as they are, and blocks are reserved but not
// touched. In a rehearsal every other rank says what this one says.
#include <memory>
#include <string>

#include "choir/comm/communicator.hpp"
#include "choir/comm/rehearsal.hpp"
#include "choir/device/device.hpp"

namespace choir {

/// Local. traffic() counts calls and bytes as the real ones do; seconds stay 0. With a device,
/// which must outlive it, blocks are memory of that device.
std::unique_ptr<Communicator> make_null_communicator(const std::string& name, int rank, int size,
                                                     Device* device = nullptr);

/// Local. The same for host memory, with results: sums are those of equal terms, what is gathered
/// is this rank's, broadcasts come from the script of `book`, and messages are zeros. `book` must
/// outlive it.
std::unique_ptr<Communicator> make_rehearsed_communicator(const std::string& name, int rank,
                                                          int size, Rehearsal& book);

}  // namespace choir
