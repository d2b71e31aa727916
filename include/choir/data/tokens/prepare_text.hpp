#pragma once
// Text files to a folder of token files: train_00000.tok ..., val_00000.tok ..., meta.json, and the
// vocabulary: vocab.json, or a tokenizer.json.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "choir/data/vocabulary/vocabulary.hpp"

namespace choir {

class Communicator;

struct PrepareOptions {
  VocabularyKind tokenizer = VocabularyKind::character;
  /// The first floor(fraction * tokens) tokens train, the rest validate. 1 and 0 leave one side
  /// out.
  double train_fraction = 0.9;
  std::int64_t tokens_per_shard = std::int64_t{1} << 27;
  /// Use this vocabulary rather than one made from the text.
  const Vocabulary* vocabulary = nullptr;
  /// Bytes of text that a rank encodes at once.
  std::int64_t part_bytes = std::int64_t{1} << 22;
};

struct PrepareSummary {
  std::optional<Vocabulary> vocabulary;  ///< always there
  std::int64_t files = 0;
  std::int64_t text_bytes = 0;
  std::int64_t train_tokens = 0, val_tokens = 0;
  std::int64_t train_shards = 0, val_shards = 0;
  std::string folder;
  double encoding_seconds = 0;  ///< of pieces; 0 for bytes and characters
  int ranks = 1;                ///< that encoded
  /// A few lines for people: files, vocabulary, counts, where.
  std::string to_string() const;
};

/// Local, or collective over `ranks`: all of them then encode what becomes pieces of a given
/// vocabulary, with the same result whatever their number, and rank 0 writes and has the summary.
/// Files are joined byte by byte in the given order, folders recursively and sorted (names
/// that begin with a dot are skipped). Everything is written under `out_dir` with a suffix and
/// synced, then renamed: a killed run leaves nothing that opens. An older prepared folder is
/// replaced; any other folder with files in it is refused. Throws DataError (nothing to read,
/// unreadable, empty, not UTF-8 with file and byte, character outside a given vocabulary),
/// DeckError (options), StorageError.
PrepareSummary prepare_text(const std::vector<std::string>& paths, const std::string& out_dir,
                            const PrepareOptions& options, Communicator* ranks = nullptr);

/// Collective. A byte-level BPE of `vocab_size` tokens, the 256 bytes and <|endoftext|> among them,
/// of the same files on every rank, which share them; the merges do not depend on the number of
/// ranks. Throws DeckError for a size that is out of bounds or more than the text has pairs for,
/// and DataError as prepare_text.
Vocabulary train_text_bpe(Communicator& ranks, const std::vector<std::string>& paths,
                          std::int64_t vocab_size);

}  // namespace choir
