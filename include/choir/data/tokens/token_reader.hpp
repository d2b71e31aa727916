#pragma once
// Ways for the ranks of a communicator to get their parts of a token stream. All give the same
// tokens; they differ in who touches the file system.
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/data/tokens/token_stream.hpp"

namespace choir {

enum class ReaderKind {
  own,         ///< each rank reads its parts (MPI_File_read_at): where clients scale, cached files
  collective,  ///< MPI_File_read_at_all: the MPI library aggregates (cb_nodes, cb_buffer_size)
  scatter,  ///< one rank of each group reads for all, MPI_Iscatterv's: few clients and open files
  node,     ///< ranks of a node fill one shared window and use it in place: nothing is sent
};
/// Throws DeckError for a name that is none of "own collective scatter node".
ReaderKind reader_kind_of(std::string_view name);
std::string_view name_of(ReaderKind kind);

/// Local. Whether a reader of this kind may be read by a thread while others use files: MPI must
/// serve several threads, and for collective reads its ROMIO, too. That of MPICH, and of those made
/// of it, holds one lock of the process through a collective call: ranks whose threads come to it
/// in another order would wait for each other.
bool may_read_in_thread(ReaderKind kind);

enum class Preload { none, host };
/// Throws DeckError for a name that is neither "none" nor "host".
Preload preload_of(std::string_view name);

struct TokenExtent {
  std::int64_t first = 0, count = 0;
};

struct ReaderOptions {
  ReaderKind kind = ReaderKind::own;
  Preload preload = Preload::none;
  /// MPI_Info for opening files ("cb_nodes", "striping_factor", "romio_cb_read" ...).
  std::map<std::string, std::string> hints;
  /// scatter, node: ranks in a group; 0: the ranks of a node. `node` never crosses nodes.
  int group_ranks = 0;
  /// scatter, node: how many ranks of each group read. 0: one for scatter, all for node (a cached
  /// file is a memory copy, which one core cannot do at the speed of the node).
  int group_readers = 0;
  /// Largest single MPI call; counts are int there and 2 GiB calls break MPI-IO libraries.
  std::size_t chunk_bytes = std::size_t{1} << 30;
};

class TokenReader {
 public:
  virtual ~TokenReader() = default;
  /// Collective, in the same order on all ranks; each passes its own extents (it may be none).
  /// Returns the tokens of the extents, packed in order, TokenStream::token_bytes() each; the
  /// memory is the reader's and holds until the next call. Waits without spinning. A failure on one
  /// rank is thrown on all of them (DataError naming rank and file).
  virtual const void* read(std::span<const TokenExtent> extents) = 0;
  /// What the MPI library made of the hints (MPI_File_get_info); empty before the first read.
  virtual std::vector<std::pair<std::string, std::string>> hints() const { return {}; }
  /// Bytes allocated by this rank, for the memory plan.
  virtual std::size_t bytes() const = 0;
  /// Local, from any thread. A read that waits for other ranks gives up with CommError, and the
  /// reader must not be used (nor destroyed) again: for a rank that is about to abort.
  virtual void abandon() = 0;
};

/// Collective. `comm` and `stream` must outlive the reader, which sends on message space of its own
/// but uses `comm` to agree on failures. No read may ask for more than `max_tokens` tokens in
/// `max_extents` extents on a rank. With preload the whole stream is read here, once per rank, or
/// once per node with the node reader. Destruction is collective.
std::unique_ptr<TokenReader> make_reader(Communicator& comm, const TokenStream& stream,
                                         const ReaderOptions& options, std::int64_t max_tokens,
                                         std::int64_t max_extents);

}  // namespace choir
