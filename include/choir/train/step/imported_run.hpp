#pragma once
// A model of another program becomes a run: deck.json, and a checkpoint of step 0 from which runs
// generate, evaluate and train. Every rank reads its share of every tensor and nothing else.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/deck/deck.hpp"
#include "choir/nn/parameter_set.hpp"
#include "choir/store/store.hpp"
#include "choir/train/step/train_checkpoint.hpp"

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
  std::int64_t fresh = 0;              ///< parameters that begin anew
  std::vector<std::string> missing;    ///< their tensors
  std::vector<std::string> unused;     ///< of the file
  std::vector<std::string> tokenizer;  ///< files that were kept
};

/// Where files of the tokenizer are kept in a run directory, as they were.
inline constexpr const char* kTokenizerFolder = "tokenizer";

/// Those of `rows` that the rank-th of `ranks` has.
struct RowShare {
  std::int64_t first = 0, rows = 0;
};
RowShare share_of_rows(std::int64_t rows, int rank, int ranks);

/// Local. DataError when no parameter of the model is `taken` from the file, whatever the flags
/// allow: the run would have nothing of it. The lists are the names that the model asks for and
/// those that the file has.
void require_match(std::int64_t taken, const std::string& path,
                   const std::vector<std::string>& missing, const std::vector<std::string>& unused);

/// Local, by one rank: the new folder. DeckError when it is taken, StorageError.
void require_free_folder(const std::string& out);
void make_run_folder(const std::string& out);

/// What there is to save: this rank's rows (share_of_rows) of every parameter, in the order of
/// ParameterSet::all(), in the type that the deck keeps it in; moments are zero.
struct ImportedValues {
  std::vector<std::vector<std::byte>> rows;
  /// State of norms and the like, with its pieces.
  std::vector<StoredTensor> more;
  std::string vocabulary;  ///< Vocabulary::to_json(), or ""
  std::int64_t vocab_size = 0;
};

/// Collective: the checkpoint of step 0. StorageError on every rank.
SaveResult save_imported(Communicator& world, const std::string& out, const Deck& deck,
                         const ParameterSet& parameters, ImportedValues& values);

}  // namespace choir
