#pragma once
// From the paths in a deck to token streams and a vocabulary, the same on all ranks.
#include <optional>

#include "choir/data/tokens/dataset.hpp"

namespace choir {

struct DataFiles {
  TokenStream train;
  TokenStream val;                       ///< without files where there is no validation data
  std::optional<Vocabulary> vocabulary;  ///< where vocab.json lies beside the training data
};

/// Collective. Rank 0 scans, and prepares text that was not prepared before; the others are told.
/// Payloads of files up to config.verify_bytes are checked, each by one rank.
DataFiles find_data_files(Communicator& comm, const DataConfig& config);

}  // namespace choir
