#pragma once
// A list of token files as one sequence of tokens. File boundaries are invisible: token i of the
// stream is the same however the data is divided into files.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace choir {

/// Format of token files. `nanogpt` is raw little-endian uint16 without header, or uint32 if every
/// second half is tiny (vocabularies above 65,536 need it). `megatron` is
/// NAME.bin with NAME.idx beside it; tokens are used in the order of the .bin file, and ends of
/// documents matter to DocumentEnds alone. `automatic` detects the format: CHOIRTOK at the start,
/// else .bin with or without an .idx.
enum class TokenFormat { automatic, native, nanogpt, megatron };

/// The files of a folder to use: those whose names begin with "train" or "val" or have it as a word
/// ("fineweb_train_000001.bin"); all of them if no name does.
enum class Split { train, val };

/// One file of a stream.
struct TokenFile {
  std::string path;
  std::int64_t payload_offset = 0;  ///< bytes before the first token
  std::int64_t first = 0;           ///< stream position of its first token
  std::int64_t count = 0;
  std::uint32_t payload_crc = 0;
  bool has_crc = false;
  std::string index{};  ///< the .idx file of Megatron-LM beside it; "": none
};

/// A plain value that opens files only inside the calls that read.
class TokenStream {
 public:
  TokenStream() = default;
  /// Local. `paths` are files, folders (their token files sorted by name, not recursive) or
  /// Megatron prefixes. Headers and lengths are checked, payloads are not (see verify). Throws
  /// DataError for missing or invalid files, files of different token widths or vocabularies, and
  /// shards missing from a prepared folder.
  static TokenStream open(const std::vector<std::string>& paths, TokenFormat format, Split split);
  /// Local. A stream of items of `item_bytes` (2 or 4) in known files, for use with readers only:
  /// packed audio is a stream of 16-bit items. Fills in TokenFile::first.
  static TokenStream of_files(std::vector<TokenFile> files, int item_bytes);

  /// Appends the files of `other`. Throws DataError for another token width or vocabulary.
  void append(const TokenStream& other);

  std::int64_t count() const {
    return files_.empty() ? 0 : files_.back().first + files_.back().count;
  }
  int token_bytes() const { return token_bytes_; }          ///< 2 (u16) or 4 (i32)
  std::int64_t vocab_size() const { return vocab_size_; }   ///< 0: unknown
  std::uint64_t vocab_hash() const { return vocab_hash_; }  ///< 0: unknown
  const std::vector<TokenFile>& files() const { return files_; }
  /// Index of the file that holds stream position `token`.
  std::size_t file_of(std::int64_t token) const;
  /// Location of a token for messages: "file 'x.tok', token 17".
  std::string place_of(std::int64_t token) const;

  /// Local. Random access by plain reads: tokens [first, first + count) into `to`. Opens the files
  /// for each call; training uses a TokenReader.
  void read(std::int64_t first, std::int64_t count, std::int32_t* to) const;
  /// Local. Reads the whole payload of one file and checks its crc32c (native files) and, if
  /// `vocab_size` > 0, that every id is below it. Throws DataError.
  void verify(std::size_t file, std::int64_t vocab_size) const;

  /// Conversion to and from bytes, so that one rank scans folders and sends the result to the
  /// others.
  std::string serialise() const;
  static TokenStream deserialise(std::string_view bytes);

 private:
  void add(const std::string& path, TokenFormat format);
  void add_native(const std::string& path);
  void add_raw(const std::string& path, int token_bytes, std::int64_t header_bytes = 0);
  void agree_width(const std::string& path, int token_bytes);

  std::vector<TokenFile> files_;
  int token_bytes_ = 0;
  std::int64_t vocab_size_ = 0;
  std::uint64_t vocab_hash_ = 0;
};

/// Local. True for a path that TokenStream::open accepts: a token file by its name or magic, a
/// Megatron prefix, or a folder with such files. False for text.
bool holds_tokens(const std::string& path);
/// True for a file that belongs to Split::val by its name.
bool is_validation_file(const std::string& path);

}  // namespace choir
