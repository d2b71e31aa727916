#pragma once
// A model of another program as a run: deck.json, and a checkpoint of step 0 with which runs
// generate, evaluate and train. Every rank reads only its share of every tensor.
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/deck/deck.hpp"
#include "choir/nn/parameter_set.hpp"
#include "src/run/stored_model.hpp"
#include "src/store/store.hpp"

namespace choir {

struct ImportRequest {
  const FamilyTable* families = nullptr;  ///< those of the program; must be set
  std::string path;                       ///< file or folder
  std::string adapter;                    ///< folder of a PEFT adapter, or ""
  std::string out;                        ///< the run directory, which must not hold a run yet
  std::vector<std::string> overrides;     ///< of the deck
  /// Initialises tensors that the file lacks as in a new model.
  bool allow_missing = false;
  /// Ignores unknown tensors, and unknown keys of the description.
  bool allow_unused = false;
};

struct ImportReport {
  std::string model;       ///< "2 layers of 16, 4 heads ..."
  std::string checkpoint;  ///< its folder
  std::int64_t parameters = 0;
  /// Elements of the file read by the rank that reads most.
  std::int64_t largest_share = 0;
  std::int64_t bytes = 0;              ///< of the checkpoint
  std::int64_t fresh = 0;              ///< parameters with initial values
  std::vector<std::string> missing;    ///< tensors of these parameters
  std::vector<std::string> unused;     ///< unused tensors of the file
  std::vector<std::string> tokenizer;  ///< tokenizer files that were copied
};

/// Folder of a run directory with unchanged copies of the tokenizer files.
inline constexpr const char* kTokenizerFolder = "tokenizer";

/// The run directory that contains a checkpoint, or the folder itself. Local.
std::string run_folder_of(const std::string& path);

/// Copies RUN/tokenizer of the run with the checkpoint `from` to the run `to`, which begins with
/// its weights, so that exports of `to` have it. The training data must have the same vocabulary:
/// `theirs` is that of the checkpoint and `ours` that of the data, as JSON; data without one
/// consist of ids of the model. Returns a line for the log that says what is kept or, by name, left
/// out; "" if there is nothing to copy. Throws StorageError. Local, by one rank.
std::string carry_tokenizer(const std::string& from, const std::string& to,
                            const std::string& theirs, const std::string& ours);

/// The same for a run that begins with parts of several checkpoints: the vocabulary of each by its
/// path. The first tokenizer with the vocabulary of the data is copied; if there is none, each is
/// left out by name.
std::vector<std::string> carry_tokenizer_of_parts(
    const std::map<std::string, std::string>& vocabularies, const std::string& to,
    const std::string& ours);

/// A range of rows. share_of_rows() returns the rows of `rows` that one of `ranks` ranks holds.
struct RowShare {
  std::int64_t first = 0, rows = 0;
};
RowShare share_of_rows(std::int64_t rows, int rank, int ranks);

/// Throws DataError if no parameter of the model is `taken` from the file, whatever the flags
/// allow: the run would contain nothing of the file. The lists are the names in the model and the
/// names in the file. Local.
void require_match(std::int64_t taken, const std::string& path,
                   const std::vector<std::string>& missing, const std::vector<std::string>& unused);

/// Check and create the new run folder: DeckError if it is not empty, StorageError. Local, by one
/// rank.
void require_free_folder(const std::string& out);
void make_run_folder(const std::string& out);

/// The values to save: this rank's rows (share_of_rows) of every parameter, in the order of
/// ParameterSet::all() and in the type in which the deck keeps it; moments are zero.
struct ImportedValues {
  std::vector<std::vector<std::byte>> rows;
  /// State of norms and similar layers, with its pieces.
  std::vector<StoredTensor> more;
  std::string vocabulary;  ///< Vocabulary::to_json(), or ""
  std::int64_t vocab_size = 0;
};

/// Saves the checkpoint of step 0. Throws StorageError on every rank. Collective.
SaveResult save_imported(Communicator& world, const std::string& out, const Deck& deck,
                         const ParameterSet& parameters, ImportedValues& values);

}  // namespace choir
