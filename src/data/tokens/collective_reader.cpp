#include <algorithm>
#include <tuple>

#include "choir/core/error.hpp"
#include "src/data/tokens/readers.hpp"

namespace choir {
namespace {

// MPI_File_read_at_all must be called equally often by all ranks, so the number of calls for each
// file is agreed on first; a rank with fewer pieces joins with none.
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

  // A failure here must not keep this rank from the calls the others are in: it is thrown at the
  // end.
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
  std::vector<std::int64_t> calls_;  // by file: pieces of the rank that has most
};

}  // namespace

std::unique_ptr<TokenReader> make_collective_reader(const ReaderSetup& setup) {
  return std::make_unique<CollectiveReader>(setup);
}

}  // namespace choir
