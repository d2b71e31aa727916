#pragma once
// A model of another program becomes a run: deck.json, and a checkpoint of step 0 from which runs
// generate, evaluate and train. Every rank reads its share of every tensor and nothing else.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"

namespace choir {

struct ImportRequest {
  std::string path;                    ///< file or folder
  std::string adapter;                 ///< "", or the folder of an adapter of PEFT for it
  std::string out;                     ///< the run directory; it may not hold a run yet
  std::vector<std::string> overrides;  ///< of the deck
  /// Tensors that the file lacks begin as in a fresh model.
  bool allow_missing = false;
  /// Tensors, and keys of the description, that are not known are left out.
  bool allow_unused = false;
};

struct ImportReport {
  std::string model;       ///< "2 layers of 16, 4 heads ..."
  std::string checkpoint;  ///< its folder
  std::int64_t parameters = 0;
  /// Elements that the rank with the most of them read of the file.
  std::int64_t largest_share = 0;
  std::int64_t bytes = 0;              ///< of the checkpoint
  std::vector<std::string> missing;    ///< that begin anew
  std::vector<std::string> unused;     ///< of the file
  std::vector<std::string> tokenizer;  ///< files that were kept
};

/// Where files of the tokenizer are kept in a run directory, as they were.
inline constexpr const char* kTokenizerFolder = "tokenizer";

/// Collective; the same report on every rank. DeckError for models that are not supported and for
/// an `out` that is taken, StorageError for files that lie, and for tensors that are missing,
/// unused or of another shape, which are all listed.
ImportReport import_model(Communicator& world, const ImportRequest& request);

}  // namespace choir
