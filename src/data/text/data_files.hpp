#pragma once
// Resolution of the paths in a deck to token streams and a vocabulary, the same on all ranks.

#include <optional>
#include <string>
#include <vector>

#include "src/data/text/dataset.hpp"

namespace choir {

struct EvalFiles {
  std::string name;  ///< "" if it is the only, unnamed set
  TokenStream stream;
};

struct DataFiles {
  TokenStream train;
  std::vector<std::int64_t> lengths;     ///< tokens of each part
  std::vector<EvalFiles> val;            ///< empty if there is no validation data
  std::optional<Vocabulary> vocabulary;  ///< set if vocab.json lies beside the training data
};

/// Collective. Rank 0 scans, prepares text that was not prepared before, and sends the result to
/// the others. Payloads of files up to config.verify_bytes are checked, each by one rank.
DataFiles find_data_files(Communicator& comm, const DataConfig& config);

}  // namespace choir
