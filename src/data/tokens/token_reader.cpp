#include "choir/data/tokens/token_reader.hpp"

#include <algorithm>
#include <tuple>

#include "choir/comm/mpi/mpi_session.hpp"
#include "choir/core/error.hpp"
#include "src/data/tokens/readers.hpp"

namespace choir {
namespace {

class OwnReader : public TokenReader {
 public:
  explicit OwnReader(const ReaderSetup& setup)
      : setup_(setup),
        group_(setup.comm),
        files_(setup.stream, MPI_COMM_SELF, setup.options.hints),
        staging_(std::make_unique<char[]>(setup.limit)) {}

  const void* read(std::span<const TokenExtent> extents) override {
    group_.agree([&] {
      check_request(setup_, extents);
      cut_into_pieces(setup_.stream, extents, staging_.get(), setup_.options.chunk_bytes, pieces_);
      for (const FilePiece& piece : pieces_) files_.read(piece);
    });
    return staging_.get();
  }
  std::vector<std::pair<std::string, std::string>> hints() const override { return files_.hints(); }
  std::size_t bytes() const override { return setup_.limit; }
  void abandon() override { group_.abandon(); }

 private:
  ReaderSetup setup_;
  MpiGroup group_;
  MpiFiles files_;
  std::unique_ptr<char[]> staging_;
  std::vector<FilePiece> pieces_;
};

// Reads collectively. All ranks must call MPI_File_read_at_all equally often, so they agree on the
// number of calls for each file first; a rank with fewer pieces joins with empty ones.
class CollectiveReader : public TokenReader {
 public:
  explicit CollectiveReader(const ReaderSetup& setup)
      : setup_(setup),
        group_(setup.comm),
        files_(setup.stream, group_.all(), setup.options.hints),
        staging_(std::make_unique<char[]>(setup.limit)),
        calls_(setup.stream.files().size()) {}

  const void* read(std::span<const TokenExtent> extents) override {
    group_.agree([&] { plan(extents); }, calls_);
    open_files();
    group_.agree([&] { read_pieces(); });
    return staging_.get();
  }
  std::vector<std::pair<std::string, std::string>> hints() const override { return files_.hints(); }
  std::size_t bytes() const override { return setup_.limit; }
  void abandon() override { group_.abandon(); }

 private:
  void plan(std::span<const TokenExtent> extents) {
    check_request(setup_, extents);
    cut_into_pieces(setup_.stream, extents, staging_.get(), setup_.options.chunk_bytes, pieces_);
    std::sort(pieces_.begin(), pieces_.end(), [](const FilePiece& a, const FilePiece& b) {
      return std::tie(a.file, a.offset) < std::tie(b.file, b.offset);
    });
    std::fill(calls_.begin(), calls_.end(), 0);
    for (const FilePiece& piece : pieces_) ++calls_[piece.file];
  }

  void open_files() {
    for (std::size_t file = 0; file < calls_.size(); ++file)
      if (calls_[file] > 0 && !files_.is_open(file)) group_.agree([&] { files_.open(file); });
  }

  // Throws a failure only at the end, because the other ranks need this rank in their collective
  // calls.
  void read_pieces() {
    std::exception_ptr failure;
    std::size_t next = 0;
    for (std::size_t file = 0; file < calls_.size(); ++file) {
      for (std::int64_t call = 0; call < calls_[file]; ++call) {
        const bool mine = next < pieces_.size() && pieces_[next].file == file;
        try {
          files_.read_all(mine ? pieces_[next] : FilePiece{file, 0, 0, staging_.get()});
        } catch (...) {
          failure = std::current_exception();
        }
        next += mine ? 1 : 0;
      }
    }
    if (failure) std::rethrow_exception(failure);
  }

  ReaderSetup setup_;
  MpiGroup group_;
  MpiFiles files_;
  std::unique_ptr<char[]> staging_;
  std::vector<FilePiece> pieces_;
  std::vector<std::int64_t> calls_;  // per file, the pieces of the rank with most
};

std::unique_ptr<TokenReader> make_plain_reader(const ReaderSetup& setup) {
  switch (setup.options.kind) {
    case ReaderKind::own:
      return std::make_unique<OwnReader>(setup);
    case ReaderKind::collective:
      return std::make_unique<CollectiveReader>(setup);
    case ReaderKind::scatter:
      return make_scatter_reader(setup);
    case ReaderKind::node:
      return make_node_reader(setup);
  }
  return nullptr;
}

}  // namespace

ReaderKind reader_kind_of(std::string_view name) {
  for (const auto kind :
       {ReaderKind::own, ReaderKind::collective, ReaderKind::scatter, ReaderKind::node})
    if (name == name_of(kind)) return kind;
  throw DeckError(fmt::format("unknown reader '{}'", name), "own, collective, scatter or node");
}

bool may_read_in_thread([[maybe_unused]] ReaderKind kind) {
#if defined(MPICH_VERSION)
  if (kind == ReaderKind::collective) return false;
#endif
  return mpi_serves_threads();
}

std::string_view name_of(ReaderKind kind) {
  switch (kind) {
    case ReaderKind::own:
      return "own";
    case ReaderKind::collective:
      return "collective";
    case ReaderKind::scatter:
      return "scatter";
    case ReaderKind::node:
      return "node";
  }
  return "?";
}

Preload preload_of(std::string_view name) {
  if (name == "none") return Preload::none;
  if (name == "host") return Preload::host;
  throw DeckError(fmt::format("unknown preload '{}'", name), "none or host");
}

void check_request(const ReaderSetup& setup, std::span<const TokenExtent> extents) {
  std::int64_t tokens = 0;
  for (const auto& extent : extents) tokens += extent.count;
  CHOIR_CHECK(std::ssize(extents) <= setup.max_extents &&
                  static_cast<std::size_t>(tokens * setup.stream.token_bytes()) <= setup.limit,
              "a read of {} extents with {} tokens exceeds the limits of {} extents and {} bytes",
              extents.size(), tokens, setup.max_extents, setup.limit);
}

std::unique_ptr<TokenReader> make_reader(Communicator& comm, const TokenStream& stream,
                                         const ReaderOptions& options, std::int64_t max_tokens,
                                         std::int64_t max_extents) {
  const ReaderSetup setup{comm, stream, options,
                          static_cast<std::size_t>(max_tokens * stream.token_bytes()), max_extents};
  return options.preload == Preload::none ? make_plain_reader(setup) : make_preloaded_reader(setup);
}

}  // namespace choir
