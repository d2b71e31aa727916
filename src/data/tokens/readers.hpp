#pragma once
// What the readers of token_reader.hpp share: the files of a stream opened with MPI-IO as they are
// needed, extents of the stream cut into pieces of files, and the constructors of the readers in
// files of their own.
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "choir/comm/mpi/mpi_api.hpp"
#include "choir/data/tokens/token_reader.hpp"
#include "choir/data/tokens/token_stream.hpp"
#include "src/data/tokens/mpi_group.hpp"

namespace choir {

/// Bytes of one file and where they belong.
struct FilePiece {
  std::size_t file = 0;
  std::int64_t offset = 0;
  int bytes = 0;
  char* to = nullptr;
};

/// Replaces `pieces` by those of `extents`, packed one behind the other at `to`, none longer than
/// `chunk_bytes`. Returns the bytes.
std::size_t cut_into_pieces(const TokenStream& stream, std::span<const TokenExtent> extents,
                            char* to, std::size_t chunk_bytes, std::vector<FilePiece>& pieces);

class MpiFiles {
 public:
  /// Opens on `comm`: MPI_COMM_SELF for independent use.
  MpiFiles(const TokenStream& stream, MPI_Comm comm,
           const std::map<std::string, std::string>& hints);
  ~MpiFiles();
  MpiFiles(const MpiFiles&) = delete;
  MpiFiles& operator=(const MpiFiles&) = delete;

  /// Collective over the files' communicator. At most kMostOpen stay open; the one used longest ago
  /// is closed, so all ranks must ask in the same order. Throws DataError.
  MPI_File open(std::size_t file);
  bool is_open(std::size_t file) const { return handles_[file].file != MPI_FILE_NULL; }
  /// Local (on MPI_COMM_SELF). Throws DataError.
  void read(const FilePiece& piece);
  /// Collective; a piece of 0 bytes takes part only.
  void read_all(const FilePiece& piece);
  std::vector<std::pair<std::string, std::string>> hints() const { return echoed_; }

 private:
  static constexpr int kMostOpen = 128;
  struct Handle {
    MPI_File file = MPI_FILE_NULL;
    std::int64_t used = 0;
  };
  void close_oldest();
  void echo_hints(MPI_File file);
  void require(int code, const MPI_Status& status, const FilePiece& piece) const;

  const TokenStream& stream_;
  MPI_Comm comm_;
  MPI_Info info_ = MPI_INFO_NULL;
  std::vector<Handle> handles_;
  std::int64_t clock_ = 0;
  int open_ = 0;
  std::vector<std::pair<std::string, std::string>> echoed_;
};

/// Everything a reader is made of. `limit`: bytes one rank may ask for at once.
struct ReaderSetup {
  Communicator& comm;
  const TokenStream& stream;
  ReaderOptions options;
  std::size_t limit = 0;
  std::int64_t max_extents = 0;
};

/// Throws unless the request stays within what was announced.
void check_request(const ReaderSetup& setup, std::span<const TokenExtent> extents);

std::unique_ptr<TokenReader> make_scatter_reader(const ReaderSetup& setup);
std::unique_ptr<TokenReader> make_node_reader(const ReaderSetup& setup);
std::unique_ptr<TokenReader> make_preloaded_reader(const ReaderSetup& setup);

}  // namespace choir
