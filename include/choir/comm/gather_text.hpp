#pragma once
// Texts of all ranks at one place, for reports, and one text at all ranks.
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"

namespace choir {

/// Collective over `comm`. At rank 0 the texts in rank order, elsewhere nothing.
std::vector<std::string> gather_texts(Communicator& comm, const std::string& mine);
/// Collective over `comm`. Everywhere the text of `root`.
void broadcast_text(Communicator& comm, std::string& text, int root = 0);

}  // namespace choir
