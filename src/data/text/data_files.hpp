#pragma once
// The files that data.* names: tokens with their vocabulary, or texts that are prepared first or
// read on the fly.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/data/text/dataset.hpp"
#include "src/data/text/streamed_source.hpp"
#include "src/data/text/token_stream.hpp"

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

// src/data/text/nanogpt_vocabulary.cpp

/// Local. Reads {"vocab_size", "itos": {id: character}, "stoi"} as a vocabulary of characters.
/// Throws StorageError for a file that is no such pickle, and DataError if its ids are not the
/// characters in sorted order, which nanoGPT's own scripts give them.
Vocabulary nanogpt_vocabulary(const std::string& path);

/// Local. The vocabulary beside token files: vocab.json, a tokenizer.json, or nanoGPT's meta.pkl.
/// Throws DataError or StorageError.
Vocabulary vocabulary_beside_tokens(const std::string& path);

/// Collective. Rank 0 scans, prepares text that was not prepared before, and sends the result to
/// the others. Payloads of files up to config.verify_bytes are checked, each by one rank.
DataFiles find_data_files(Communicator& comm, const DataConfig& config);

/// Collective. The same for training on the fly: the validation data and the vocabulary, without
/// training data.
DataFiles find_streamed_files(Communicator& comm, const DataConfig& config);

/// Collective. True if a validation set that is named is text, which has to be encoded.
bool names_text(Communicator& comm, const DataConfig& config);

/// Collective. The validation sets that are named, and the vocabulary of the checkpoint, for
/// evaluation: the training data are not looked at. Without a vocabulary no set may be text.
DataFiles find_validation_files(Communicator& comm, const DataConfig& config);

/// Collective. The texts to train on and their index, which is kept beside prepared text.
std::shared_ptr<const StreamedText> open_streamed_text(Communicator& comm, const DataConfig& config,
                                                       const Vocabulary& vocabulary);

}  // namespace choir
