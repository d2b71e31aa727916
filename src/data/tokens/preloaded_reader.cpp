#include <algorithm>
#include <cstring>

#include "choir/core/error.hpp"
#include "src/data/tokens/node_memory.hpp"
#include "src/data/tokens/readers.hpp"

namespace choir {
namespace {

constexpr std::int64_t kBlockTokens = std::int64_t{1} << 24;

// The whole stream in memory, private or (node reader) once per node.
class PreloadedReader : public TokenReader {
 public:
  explicit PreloadedReader(const ReaderSetup& setup)
      : setup_(setup), staging_(std::make_unique<char[]>(setup.limit)) {
    if (setup.options.kind == ReaderKind::node)
      load_shared();
    else
      load_private();
  }

  const void* read(std::span<const TokenExtent> extents) override {
    check_request(setup_, extents);
    if (extents.size() == 1) return at(extents[0]);
    char* to = staging_.get();
    for (const auto& extent : extents) {
      const std::size_t bytes = bytes_of(extent.count);
      std::memcpy(to, at(extent), bytes);
      to += bytes;
    }
    return staging_.get();
  }
  std::vector<std::pair<std::string, std::string>> hints() const override { return hints_; }
  std::size_t bytes() const override { return setup_.limit + own_bytes_; }
  void abandon() override {}  // reads wait for nobody

 private:
  std::size_t bytes_of(std::int64_t tokens) const {
    return static_cast<std::size_t>(tokens * setup_.stream.token_bytes());
  }
  const char* at(const TokenExtent& extent) const {
    CHOIR_CHECK(extent.first >= 0 && extent.first + extent.count <= setup_.stream.count(),
                "tokens [{}, {}) of a stream of {}", extent.first, extent.first + extent.count,
                setup_.stream.count());
    return stream_memory_ + bytes_of(extent.first);
  }

  void load_private() {
    const std::int64_t total = setup_.stream.count(), block = std::min(total, kBlockTokens);
    own_bytes_ = bytes_of(total);
    private_ = std::make_unique_for_overwrite<char[]>(own_bytes_);
    ReaderOptions plain = setup_.options;
    plain.preload = Preload::none;
    const auto reader = make_reader(setup_.comm, setup_.stream, plain, block, 1);
    for (std::int64_t first = 0; first < total; first += block) {
      const TokenExtent extent{first, std::min(block, total - first)};
      std::memcpy(private_.get() + bytes_of(first), reader->read({&extent, 1}),
                  bytes_of(extent.count));
    }
    hints_ = reader->hints();
    stream_memory_ = private_.get();
  }

  // Every rank of the node reads its share into the one window.
  void load_shared() {
    MpiGroup group(setup_.comm);
    const MPI_Comm node = group.split(setup_.options.group_ranks, true);
    int rank = 0, size = 1;
    MPI_Comm_rank(node, &rank);
    MPI_Comm_size(node, &size);
    const std::int64_t total = setup_.stream.count();
    const std::int64_t first = total / size * rank + std::min<std::int64_t>(rank, total % size);
    const std::int64_t count = total / size + (rank < total % size ? 1 : 0);
    own_bytes_ = bytes_of(count);
    shared_ = std::make_unique<NodeMemory>(node, own_bytes_, true);
    stream_memory_ = shared_->part(0);
    MpiFiles files(setup_.stream, MPI_COMM_SELF, setup_.options.hints);
    std::vector<FilePiece> pieces;
    const TokenExtent extent{first, count};
    group.agree([&] {
      cut_into_pieces(setup_.stream, {&extent, 1}, shared_->part(rank), setup_.options.chunk_bytes,
                      pieces);
      for (const FilePiece& piece : pieces) files.read(piece);
      shared_->fence();
    });
    shared_->fence();
    hints_ = files.hints();
  }

  ReaderSetup setup_;
  std::unique_ptr<char[]> staging_, private_;
  std::unique_ptr<NodeMemory> shared_;
  const char* stream_memory_ = nullptr;
  std::size_t own_bytes_ = 0;
  std::vector<std::pair<std::string, std::string>> hints_;
};

}  // namespace

std::unique_ptr<TokenReader> make_preloaded_reader(const ReaderSetup& setup) {
  return std::make_unique<PreloadedReader>(setup);
}

}  // namespace choir
