#pragma once
// Documents in rows of tokens: the tokens that end them, by value or by the index of Megatron-LM,
// and rows whose documents are separate. With separate documents attention and positions begin anew
// behind each end, and the last token of a document has no target, since its successor belongs to
// the next one (Megatron-LM's reset_position_ids, reset_attention_mask and eod_mask_loss together).
// The token that ends a document is a target of the token before it.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "choir/core/tensor.hpp"
#include "src/core/file.hpp"
#include "src/data/text/token_samples.hpp"
#include "src/data/text/token_stream.hpp"

namespace choir {

/// The contents of rows with separate documents, as sums over documents. Padding has no part in
/// them.
struct DocumentCounts {
  std::int64_t targets = 0;  ///< targets that are not kIgnoredTarget
  /// Pairs of query and key of the MFU formula, which ignores the causal mask: L^2 for a document
  /// of L inputs, and W (2 L - W) in layers with a window of W < L.
  std::int64_t pairs = 0, window_pairs = 0;
  void add(const DocumentCounts& other) {
    targets += other.targets;
    pairs += other.pairs;
    window_pairs += other.window_pairs;
  }
  friend bool operator==(const DocumentCounts&, const DocumentCounts&) = default;
};

/// The documents of the .idx file of a Megatron-LM pair. It keeps the file open and looks a
/// position up by bisection of the file, so it needs no memory for the documents.
class MegatronDocuments {
 public:
  /// Local. The index must have passed read_megatron_index(); `tokens` is the length of the .bin
  /// file.
  MegatronDocuments(const std::string& path, int token_bytes, std::int64_t tokens);
  /// Calls use(p) for each position p of [first, first + count) whose token is the last of a
  /// document, in ascending order, possibly more than once (empty documents).
  template <class Use>
  void ends_within(std::int64_t first, std::int64_t count, const Use& use) const {
    for (std::int64_t d = first_after(first); d <= documents_; ++d) {
      const std::int64_t end = start(d);
      if (end > first + count) return;
      use(end - 1);
    }
  }
  /// Reads the whole list. Throws DataError if it is not an ascending list of sequences.
  void check() const;

 private:
  /// The first token of document `d`; that of document documents_ is the end of the file.
  std::int64_t start(std::int64_t d) const;
  /// The first document that begins behind `token`.
  std::int64_t first_after(std::int64_t token) const;

  PosixFile file_;
  int token_bytes_;
  std::int64_t tokens_, sequences_ = 0, documents_ = 0;
};

/// The ends of documents in a stream. Not for several threads at a time.
class DocumentEnds {
 public:
  /// Local. A document ends with each `end_token` (below 0: none), and where the index of a file
  /// says so. `stream` must outlive the object. Index files are opened when they are first needed.
  DocumentEnds(const TokenStream& stream, std::int32_t end_token);
  /// Sets ends[t] to 1 for each input t of `window` that ends a document, to 0 for the others;
  /// `inputs` are the tokens of the window.
  void mark(const TokenWindow& window, const std::int32_t* inputs, std::vector<std::uint8_t>& ends);

 private:
  const MegatronDocuments& index_of(std::size_t file);

  const TokenStream& stream_;
  std::int32_t end_token_;
  bool indexed_ = false;
  std::vector<std::unique_ptr<MegatronDocuments>> indices_;
};

/// Local. Throws DataError if the end of a document is unknown in some file: there is no
/// `end_token` (below 0), and the file has no index; or if an index is damaged.
void require_document_ends(const TokenStream& stream, std::int32_t end_token);

/// Separates the documents of row `row`, whose first `inputs` positions are tokens and the rest is
/// padding: sets begins and positions, and removes targets behind ends from the row and from
/// batch.valid. Padding is a document of its own.
void separate_documents(const std::vector<std::uint8_t>& ends, std::int64_t inputs,
                        std::int64_t row, Batch& batch);

/// Separates the documents of all rows, which end with each `end_token`. The first `full` rows have
/// no padding, the others are padding.
void separate_documents(std::int32_t end_token, std::int64_t full, Batch& batch);

/// The contents of a batch with separate documents and no padding. `window`: 0 if no layer has one.
DocumentCounts count_documents(const Batch& batch, std::int64_t window);

}  // namespace choir
