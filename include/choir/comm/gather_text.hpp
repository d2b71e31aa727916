#pragma once
// Texts of all ranks at one place, for reports.
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"

namespace choir {

/// Collective over `comm`. At rank 0 the texts in rank order, elsewhere nothing.
std::vector<std::string> gather_texts(Communicator& comm, const std::string& mine);

}  // namespace choir
