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

}  // namespace

std::unique_ptr<TokenReader> make_own_reader(const ReaderSetup& setup) {
  return std::make_unique<OwnReader>(setup);
}

}  // namespace choir
