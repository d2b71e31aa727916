#pragma once
// A list of token files seen as one long row of tokens. Where a file ends is invisible: token i of
// the stream is the same whatever way the data is cut into files.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace choir {

/// `nanogpt`: raw little-endian uint16, no header. `megatron`: NAME.bin with NAME.idx beside it;
/// the boundaries of its sequences and documents are ignored, tokens count in the order of the .bin
/// file. `automatic`: CHOIRTOK at the start, else .bin with or without an .idx.
enum class TokenFormat { automatic, native, nanogpt, megatron };
/// Throws DeckError for a name that is none of "auto native nanogpt megatron".
TokenFormat token_format_of(std::string_view name);

/// Which files of a folder are meant: those whose names start with "train" or "val"; all of them
/// where no name starts with either.
enum class Split { train, val };

/// One file of a stream.
struct TokenFile {
  std::string path;
  std::int64_t payload_offset = 0;  ///< bytes before the first token
  std::int64_t first = 0;           ///< stream position of its first token
  std::int64_t count = 0;
  std::uint32_t payload_crc = 0;
  bool has_crc = false;
};

/// A plain value; opens files only inside the calls that read.
class TokenStream {
 public:
  TokenStream() = default;
  /// Local. `paths` are files, folders (their token files sorted by name, not recursive) or
  /// Megatron prefixes. Headers and lengths are checked, payloads are not (see verify). Throws
  /// DataError: nothing there, a bad file, files of different token width or vocabulary, shards
  /// missing from a prepared folder.
  static TokenStream open(const std::vector<std::string>& paths, TokenFormat format, Split split);
  /// Local. Items of `item_bytes` (2 or 4) in files that are known already, for readers alone:
  /// packed audio is a stream of 16-bit items. TokenFile::first is filled in.
  static TokenStream of_files(std::vector<TokenFile> files, int item_bytes);

  /// Puts the files of `other` behind those there. Throws DataError: another width or vocabulary.
  void append(const TokenStream& other);

  std::int64_t count() const {
    return files_.empty() ? 0 : files_.back().first + files_.back().count;
  }
  int token_bytes() const { return token_bytes_; }          ///< 2 (u16) or 4 (i32)
  std::int64_t vocab_size() const { return vocab_size_; }   ///< 0: the files do not say
  std::uint64_t vocab_hash() const { return vocab_hash_; }  ///< 0: the files do not say
  const std::vector<TokenFile>& files() const { return files_; }
  /// Index of the file that holds stream position `token`.
  std::size_t file_of(std::int64_t token) const;
  /// "file 'x.tok', token 17" for messages.
  std::string place_of(std::int64_t token) const;

  /// Local, random access by plain reads: tokens [first, first + count) into `to`. Opens the files
  /// anew each time; training goes through a TokenReader.
  void read(std::int64_t first, std::int64_t count, std::int32_t* to) const;
  /// Local. Reads the whole payload of one file: crc32c (native files) and, where `vocab_size` > 0,
  /// that every id is below it. Throws DataError.
  void verify(std::size_t file, std::int64_t vocab_size) const;

  /// To and from bytes, for sending to ranks that then need not scan folders.
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

/// Local. True for a path that is a token file by its name or magic, a Megatron prefix, or a folder
/// that has such files: what TokenStream::open takes. False for text.
bool holds_tokens(const std::string& path);

}  // namespace choir
