#pragma once
// Parts shared by the readers of token_reader.hpp: files of a stream that MPI-IO opens on demand,
// division of extents into pieces of files, and the constructors of readers.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/comm/mpi/mpi_communicator.hpp"
#include "src/data/text/mpi_group.hpp"
#include "src/data/text/token_reader.hpp"
#include "src/data/text/token_stream.hpp"

namespace choir {

/// A range of bytes of one file and its destination.
struct FilePiece {
  std::size_t file = 0;
  std::int64_t offset = 0;
  int bytes = 0;
  char* to = nullptr;
};

/// Replaces `pieces` by the pieces of `extents`, packed one after another at `to`, none longer than
/// `chunk_bytes`. Returns the number of bytes.
std::size_t cut_into_pieces(const TokenStream& stream, std::span<const TokenExtent> extents,
                            char* to, std::size_t chunk_bytes, std::vector<FilePiece>& pieces);

class MpiFiles {
 public:
  /// Opens files on `comm`; MPI_COMM_SELF allows independent use.
  MpiFiles(const TokenStream& stream, MPI_Comm comm,
           const std::map<std::string, std::string>& hints);
  ~MpiFiles();
  MpiFiles(const MpiFiles&) = delete;
  MpiFiles& operator=(const MpiFiles&) = delete;

  /// Collective over the communicator of the files. At most kMostOpen files stay open; the least
  /// recently used one is closed, so all ranks must open in the same order. Throws DataError.
  MPI_File open(std::size_t file);
  bool is_open(std::size_t file) const { return handles_[file].file != MPI_FILE_NULL; }
  /// Local (on MPI_COMM_SELF). Throws DataError.
  void read(const FilePiece& piece);
  /// Collective; a rank without data passes a piece of 0 bytes.
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

/// The parameters of a reader. `limit` is the most bytes that a rank may request at once.
struct ReaderSetup {
  Communicator& comm;
  const TokenStream& stream;
  ReaderOptions options;
  std::size_t limit = 0;
  std::int64_t max_extents = 0;
};

/// Throws Error if the request exceeds the limits of the setup.
void check_request(const ReaderSetup& setup, std::span<const TokenExtent> extents);

std::unique_ptr<TokenReader> make_scatter_reader(const ReaderSetup& setup);
std::unique_ptr<TokenReader> make_node_reader(const ReaderSetup& setup);
std::unique_ptr<TokenReader> make_preloaded_reader(const ReaderSetup& setup);

}  // namespace choir
