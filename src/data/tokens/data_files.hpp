#pragma once
// From the paths in a deck to token streams and a vocabulary, the same on all ranks.
#include <optional>
#include <string>
#include <vector>

#include "choir/data/tokens/dataset.hpp"

namespace choir {

struct EvalFiles {
  std::string name;  ///< "": the only one that has none
  TokenStream stream;
};

struct DataFiles {
  TokenStream train;
  std::vector<std::int64_t> lengths;     ///< of each part, in tokens
  std::vector<EvalFiles> val;            ///< none where there is no validation data
  std::optional<Vocabulary> vocabulary;  ///< where vocab.json lies beside the training data
};

/// Collective. Rank 0 scans, and prepares text that was not prepared before; the others are told.
/// Payloads of files up to config.verify_bytes are checked, each by one rank.
DataFiles find_data_files(Communicator& comm, const DataConfig& config);

}  // namespace choir
