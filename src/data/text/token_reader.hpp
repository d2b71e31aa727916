#pragma once
// Readers that bring to the ranks of a communicator their parts of a token stream. All deliver the
// same tokens; they differ in the ranks that access the file system.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/core/run_choices.hpp"
#include "src/data/text/token_stream.hpp"

namespace choir {

/// Local. True if a thread may use a reader of this kind while other threads use files. MPI must
/// support several threads, and for collective reads so must its ROMIO. The ROMIO of MPICH and of
/// MPI libraries derived from it holds one lock of the process during a collective call: ranks
/// whose threads reach it in different orders would deadlock.
bool may_read_in_thread(ReaderKind kind);

struct TokenExtent {
  std::int64_t first = 0, count = 0;
};

struct ReaderOptions {
  ReaderKind kind = ReaderKind::own;
  /// With `device`, every rank that reads keeps tokens of its own, with any reader.
  Preload preload = Preload::none;
  /// MPI_Info for opening files ("cb_nodes", "striping_factor", "romio_cb_read" ...).
  std::map<std::string, std::string> hints;
  /// scatter, node: ranks per group; 0: all ranks of a node. A group of `node` never spans nodes.
  int group_ranks = 0;
  /// scatter, node: ranks of each group that read. 0: one for scatter, all for node (reading a
  /// cached file is a memory copy, and a single core cannot use the bandwidth of the node).
  int group_readers = 0;
  /// Largest single MPI call, because counts are int and calls of 2 GiB break MPI-IO libraries.
  std::size_t chunk_bytes = std::size_t{1} << 30;
};

/// The end of a description of a reader.
inline const char* preload_text(Preload preload) {
  return preload == Preload::none   ? ""
         : preload == Preload::host ? ", preloaded"
                                    : ", preloaded in device memory";
}

class TokenReader {
 public:
  virtual ~TokenReader() = default;
  /// Collective, in the same order on all ranks; each passes its own extents, possibly none.
  /// Returns the tokens of the extents, packed in order, TokenStream::token_bytes() each. The
  /// reader owns the memory, which is valid until the next call. Waits without spinning. A failure
  /// on one rank is thrown on all of them (DataError naming rank and file).
  virtual const void* read(std::span<const TokenExtent> extents) = 0;
  /// The hints that the MPI library uses (MPI_File_get_info); empty before the first read.
  virtual std::vector<std::pair<std::string, std::string>> hints() const { return {}; }
  /// Bytes allocated by this rank, for the memory plan.
  virtual std::size_t bytes() const = 0;
  /// Local; any thread may call it. A read that is waiting for other ranks throws CommError, and
  /// the reader must not be used (nor destroyed) afterwards. Meant for a rank that is about to
  /// abort.
  virtual void abandon() = 0;
};

/// Collective. `comm` and `stream` must outlive the reader, which communicates on a duplicate of
/// `comm` and uses `comm` only to agree on failures. No read may request more than `max_tokens`
/// tokens in `max_extents` extents on a rank. With preload the whole stream is read here, once per
/// rank, or once per node with the node reader. Destruction is collective.
std::unique_ptr<TokenReader> make_reader(Communicator& comm, const TokenStream& stream,
                                         const ReaderOptions& options, std::int64_t max_tokens,
                                         std::int64_t max_extents);

}  // namespace choir
