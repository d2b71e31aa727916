#include "src/data/text/token_reader.hpp"

#include <algorithm>
#include <tuple>

#include "choir/core/error.hpp"
#include "src/comm/mpi/mpi_session.hpp"
#include "src/data/text/readers.hpp"

namespace choir {
namespace {

constexpr std::size_t kUnit = 64;  // MPI counts are ints: in units, 128 GiB fit

// Members send their requests to a leader, which reads; then all agree on success, and it sends the
// data.
class ScatterReader : public TokenReader {
 public:
  explicit ScatterReader(const ReaderSetup& setup)
      : setup_(setup),
        group_(setup.comm),
        files_(setup.stream, MPI_COMM_SELF, setup.options.hints),
        slot_((setup.limit + kUnit - 1) / kUnit * kUnit),
        row_(static_cast<std::size_t>(2 * setup.max_extents)) {
    split();
    const auto members = static_cast<std::size_t>(rank_ == 0 ? size_ : 1);
    staging_ = std::make_unique<char[]>(members * slot_);
    wanted_.resize(members * row_);
    mine_.resize(row_);
    counts_.resize(static_cast<std::size_t>(size_));
    displacements_.resize(counts_.size());
    mpi_check(MPI_Type_contiguous(static_cast<int>(kUnit), MPI_BYTE, &unit_),
              "MPI_Type_contiguous");
    mpi_check(MPI_Type_commit(&unit_), "MPI_Type_commit");
  }

  ~ScatterReader() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized != 0) return;
    MPI_Type_free(&unit_);
    MPI_Comm_free(&members_);
  }

  const void* read(std::span<const TokenExtent> extents) override {
    std::int64_t rounds = 0;
    group_.agree([&] { rounds = tell(extents); }, std::span(&rounds, 1));
    gather_wishes();
    group_.agree([&] { read_for_all(); });
    for (std::int64_t round = 0; round < rounds; ++round) send_round(round);
    return staging_.get();
  }
  std::vector<std::pair<std::string, std::string>> hints() const override { return files_.hints(); }
  std::size_t bytes() const override {
    return slot_ * static_cast<std::size_t>(rank_ == 0 ? size_ : 1);
  }
  void abandon() override { group_.abandon(); }

 private:
  void split() {
    const MPI_Comm whole = group_.split(setup_.options.group_ranks, false);
    int rank = 0, size = 1;
    MPI_Comm_rank(whole, &rank);
    MPI_Comm_size(whole, &size);
    const int readers = std::clamp(setup_.options.group_readers, 1, size);
    mpi_check(MPI_Comm_split(whole, rank * readers / size, rank, &members_), "MPI_Comm_split");
    MPI_Comm free_me = whole;
    MPI_Comm_free(&free_me);
    MPI_Comm_set_errhandler(members_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(members_, &rank_);
    MPI_Comm_size(members_, &size_);
  }

  std::size_t round_bytes() const {
    return std::max(kUnit, setup_.options.chunk_bytes / kUnit * kUnit);
  }

  // Stores the request of this rank and returns the number of messages that it needs.
  std::int64_t tell(std::span<const TokenExtent> extents) {
    check_request(setup_, extents);
    std::fill(mine_.begin(), mine_.end(), 0);
    std::int64_t tokens = 0;
    for (std::size_t i = 0; i < extents.size(); ++i) {
      mine_[2 * i] = extents[i].first;
      mine_[2 * i + 1] = extents[i].count;
      tokens += extents[i].count;
    }
    my_bytes_ = static_cast<std::size_t>(tokens * setup_.stream.token_bytes());
    return static_cast<std::int64_t>((my_bytes_ + round_bytes() - 1) / round_bytes());
  }

  void gather_wishes() {
    MPI_Request request;
    const int count = static_cast<int>(row_);
    mpi_check(MPI_Igather(mine_.data(), count, MPI_INT64_T, wanted_.data(), count, MPI_INT64_T, 0,
                          members_, &request),
              "MPI_Igather");
    group_.wait(request);
  }

  void read_for_all() {
    if (rank_ != 0) return;
    extents_.resize(row_ / 2);
    total_.resize(static_cast<std::size_t>(size_));
    for (std::size_t member = 0; member < total_.size(); ++member) {
      for (std::size_t i = 0; i < extents_.size(); ++i)
        extents_[i] = {wanted_[member * row_ + 2 * i], wanted_[member * row_ + 2 * i + 1]};
      total_[member] = cut_into_pieces(setup_.stream, extents_, staging_.get() + member * slot_,
                                       setup_.options.chunk_bytes, pieces_);
      for (const FilePiece& piece : pieces_) files_.read(piece);
    }
  }

  static int units(std::size_t bytes) { return static_cast<int>((bytes + kUnit - 1) / kUnit); }

  std::size_t part(std::size_t total, std::int64_t round) const {
    const std::size_t done = static_cast<std::size_t>(round) * round_bytes();
    return total <= done ? 0 : std::min(total - done, round_bytes());
  }

  void send_round(std::int64_t round) {
    const std::size_t done = static_cast<std::size_t>(round) * round_bytes();
    if (rank_ == 0) {
      for (std::size_t member = 0; member < total_.size(); ++member) {
        counts_[member] = units(part(total_[member], round));
        displacements_[member] = static_cast<int>((member * slot_ + done) / kUnit);
      }
    }
    MPI_Request request;
    // The part of the leader is already in place.
    void* to = rank_ == 0 ? MPI_IN_PLACE : staging_.get() + done;
    mpi_check(MPI_Iscatterv(staging_.get(), counts_.data(), displacements_.data(), unit_, to,
                            units(part(my_bytes_, round)), unit_, 0, members_, &request),
              "MPI_Iscatterv");
    group_.wait(request);
  }

  ReaderSetup setup_;
  MpiGroup group_;
  MpiFiles files_;
  MPI_Comm members_ = MPI_COMM_NULL;
  MPI_Datatype unit_ = MPI_DATATYPE_NULL;
  int rank_ = 0, size_ = 1;
  std::size_t slot_, row_, my_bytes_ = 0;
  std::unique_ptr<char[]> staging_;          // on the leader one slot per member
  std::vector<std::int64_t> wanted_, mine_;  // (first, count) pairs, padded with zeros
  std::vector<TokenExtent> extents_;
  std::vector<std::size_t> total_;
  std::vector<int> counts_, displacements_;
  std::vector<FilePiece> pieces_;
};

}  // namespace

std::unique_ptr<TokenReader> make_scatter_reader(const ReaderSetup& setup) {
  return std::make_unique<ScatterReader>(setup);
}

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

bool may_read_in_thread([[maybe_unused]] ReaderKind kind) {
#if defined(MPICH_VERSION)
  if (kind == ReaderKind::collective) return false;
#endif
  return mpi_serves_threads();
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
