#pragma once
// Preparation of a folder of token files from texts (plain files and sources of documents, see
// text_source.hpp): train_00000.tok ..., val_00000.tok ..., meta.json, and the vocabulary
// (vocab.json or a tokenizer.json).

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/data/sources/text_source.hpp"
#include "src/data/vocabulary/vocabulary.hpp"

namespace choir {

class Communicator;

struct PrepareOptions {
  VocabularyKind tokenizer = VocabularyKind::character;
  /// The first floor(fraction * tokens) tokens are for training, the rest for validation. With 1 or
  /// 0 one side is empty.
  double train_fraction = 0.9;
  std::int64_t tokens_per_shard = std::int64_t{1} << 27;
  /// Use this vocabulary instead of one built from the text.
  const Vocabulary* vocabulary = nullptr;
  /// Bytes of text that a rank encodes at a time.
  std::int64_t part_bytes = std::int64_t{1} << 22;
  /// The field of JSON lines and the column of Parquet that hold the text.
  std::string field = "text";
  /// JSON of the request, which meta.json keeps as "prepared_with"; "" for none.
  std::string request{};
};

/// Throws DataError if `out_dir` holds text that was prepared with another `request` (of
/// PrepareOptions), which would be lost, and with which runs may have begun. Local.
void require_same_request(const std::string& out_dir, const std::string& request);

struct PrepareSummary {
  std::optional<Vocabulary> vocabulary;  ///< always set
  std::int64_t files = 0;
  std::int64_t text_bytes = 0;  ///< of the files
  bool has_documents = false;   ///< true if some file is a source of documents
  std::int64_t documents = 0;
  DamagedRows damaged;             ///< rows that were left out
  std::vector<std::string> notes;  ///< TextSource::notes()
  std::int64_t train_tokens = 0, val_tokens = 0;
  std::int64_t train_shards = 0, val_shards = 0;
  std::string folder;
  double encoding_seconds = 0;  ///< time to encode into pieces; 0 for bytes and characters
  int ranks = 1;                ///< ranks that encoded
  /// A few lines for the user: files, vocabulary, counts, folder.
  std::string to_string() const;
};

/// Local, or collective over `ranks`. With ranks and a given vocabulary of pieces, all ranks
/// encode, with the same result for any number of them; rank 0 writes and has the summary. Files
/// are concatenated in the given order: plain files byte by byte, documents each with
/// end_of_document() behind it; folders are read recursively and sorted (names that begin with a
/// dot are skipped). Damaged rows are left out and counted. Everything is written beside `out_dir`
/// under a name with a suffix, synced, and renamed, so a killed run leaves no folder that opens. An
/// older prepared folder is replaced; any other folder that contains files is refused. Throws
/// DataError (nothing to read, no row with a text, unreadable, empty, not UTF-8 with file and byte,
/// a character outside a given vocabulary), DeckError (options), StorageError.
PrepareSummary prepare_text(const std::vector<std::string>& paths, const std::string& out_dir,
                            const PrepareOptions& options, Communicator* ranks = nullptr);

/// Collective. Trains a byte-level BPE of `vocab_size` tokens, including the 256 bytes and
/// <|endoftext|>, on the same files on every rank. The ranks divide the files; the merges do not
/// depend on their number. Throws DeckError for a size that is out of bounds or larger than the
/// pairs of the text allow, and DataError as prepare_text().
Vocabulary train_text_bpe(Communicator& ranks, const std::vector<std::string>& paths,
                          std::int64_t vocab_size, const std::string& field = "text");

}  // namespace choir
