#include <algorithm>
#include <cstring>

#include "choir/core/error.hpp"
#include "src/data/tokens/node_memory.hpp"
#include "src/data/tokens/readers.hpp"

namespace choir {
namespace {

// Each rank's part of the window: the number of its extents, the extents, and from a page boundary
// on the tokens. Readers fill the parts of the ranks they serve; a rank uses its part where it
// lies.
class NodeReader : public TokenReader {
 public:
  explicit NodeReader(const ReaderSetup& setup)
      : setup_(setup),
        group_(setup.comm),
        files_(setup.stream, MPI_COMM_SELF, setup.options.hints),
        table_bytes_(round_to_page(8 + 16 * static_cast<std::size_t>(setup.max_extents))),
        window_(group_.split(setup.options.group_ranks, true),
                round_to_page(table_bytes_ + setup.limit), false) {
    const int size = window_.size(), wanted = setup.options.group_readers;
    const int readers = wanted == 0 ? size : std::min(wanted, size);
    alone_ = readers == size;
    // Reader i sits at the first rank it serves.
    for (int i = 0; i < readers; ++i) {
      if (i * size / readers != window_.rank()) continue;
      first_served_ = window_.rank();
      end_served_ = (i + 1) * size / readers;
    }
  }

  const void* read(std::span<const TokenExtent> extents) override {
    std::exception_ptr failure;
    try {
      tell(extents);
    } catch (...) {
      failure = std::current_exception();
      tell({});
    }
    if (!alone_) meet();
    group_.agree([&] {
      if (failure) std::rethrow_exception(failure);
      for (int rank = first_served_; rank < end_served_; ++rank) serve(rank);
      window_.fence();
    });
    window_.fence();
    return window_.part(window_.rank()) + table_bytes_;
  }
  std::vector<std::pair<std::string, std::string>> hints() const override { return files_.hints(); }
  std::size_t bytes() const override { return round_to_page(table_bytes_ + setup_.limit); }
  void abandon() override { group_.abandon(); }

 private:
  static std::size_t round_to_page(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

  void tell(std::span<const TokenExtent> extents) {
    check_request(setup_, extents);
    char* part = window_.part(window_.rank());
    const auto count = static_cast<std::int64_t>(extents.size());
    std::memcpy(part, &count, 8);
    if (count > 0) std::memcpy(part + 8, extents.data(), extents.size_bytes());
  }

  // All wishes are noted, and nobody uses tokens of the call before any more.
  void meet() {
    window_.fence();
    MPI_Request request;
    mpi_check(MPI_Ibarrier(window_.node(), &request), "MPI_Ibarrier");
    group_.wait(request);
    window_.fence();
  }

  void serve(int rank) {
    char* part = window_.part(rank);
    std::int64_t count = 0;
    std::memcpy(&count, part, 8);
    const auto* extents = reinterpret_cast<const TokenExtent*>(part + 8);
    cut_into_pieces(setup_.stream, {extents, static_cast<std::size_t>(count)}, part + table_bytes_,
                    setup_.options.chunk_bytes, pieces_);
    for (const FilePiece& piece : pieces_) files_.read(piece);
  }

  ReaderSetup setup_;
  MpiGroup group_;
  MpiFiles files_;
  std::size_t table_bytes_;
  NodeMemory window_;
  bool alone_ = false;  // every rank serves itself
  int first_served_ = 0, end_served_ = 0;
  std::vector<FilePiece> pieces_;
};

}  // namespace

std::unique_ptr<TokenReader> make_node_reader(const ReaderSetup& setup) {
  return std::make_unique<NodeReader>(setup);
}

}  // namespace choir
