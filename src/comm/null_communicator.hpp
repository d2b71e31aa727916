#pragma once
// A communicator of any size that does nothing but count, for planning a rank of a machine that one
// does not have. Data stay as they are, and blocks are reserved but not touched.
#include <memory>
#include <string>

#include "choir/comm/communicator.hpp"
#include "choir/device/device.hpp"

namespace choir {

/// Local. traffic() counts calls and bytes as the real ones do; seconds stay 0. With a device,
/// which must outlive it, blocks are memory of that device.
std::unique_ptr<Communicator> make_null_communicator(const std::string& name, int rank, int size,
                                                     Device* device = nullptr);

}  // namespace choir
