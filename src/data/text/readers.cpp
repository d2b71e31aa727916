#include "src/data/text/readers.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <vector>

#include "choir/core/error.hpp"
#include "src/comm/mpi/mpi_communicator.hpp"
#include "src/data/text/mpi_group.hpp"

namespace choir {

std::size_t cut_into_pieces(const TokenStream& stream, std::span<const TokenExtent> extents,
                            char* to, std::size_t chunk_bytes, std::vector<FilePiece>& pieces) {
  const auto width = static_cast<std::int64_t>(stream.token_bytes());
  const std::int64_t chunk =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(chunk_bytes) / width);
  const char* const begin = to;
  pieces.clear();
  for (TokenExtent left : extents) {
    CHOIR_CHECK(left.first >= 0 && left.count >= 0 && left.first + left.count <= stream.count(),
                "tokens [{}, {}) of a stream of {}", left.first, left.first + left.count,
                stream.count());
    while (left.count > 0) {
      const std::size_t index = stream.file_of(left.first);
      const TokenFile& file = stream.files()[index];
      const std::int64_t here = std::min({left.count, file.first + file.count - left.first, chunk});
      pieces.push_back({index, file.payload_offset + (left.first - file.first) * width,
                        static_cast<int>(here * width), to});
      to += here * width;
      left = {left.first + here, left.count - here};
    }
  }
  return static_cast<std::size_t>(to - begin);
}

MpiFiles::MpiFiles(const TokenStream& stream, MPI_Comm comm,
                   const std::map<std::string, std::string>& hints)
    : stream_(stream), comm_(comm), handles_(stream.files().size()) {
  if (hints.empty()) return;
  mpi_check(MPI_Info_create(&info_), "MPI_Info_create");
  for (const auto& [key, value] : hints)
    if (MPI_Info_set(info_, key.c_str(), value.c_str()) != MPI_SUCCESS)
      throw DeckError(fmt::format("data.hints: MPI takes no hint '{}' = '{}'", key, value),
                      "keys have at most 254, values at most 1023 characters");
}

MpiFiles::~MpiFiles() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) return;
  for (auto& handle : handles_)
    if (handle.file != MPI_FILE_NULL) MPI_File_close(&handle.file);
  if (info_ != MPI_INFO_NULL) MPI_Info_free(&info_);
}

MPI_File MpiFiles::open(std::size_t index) {
  Handle& handle = handles_[index];
  handle.used = ++clock_;
  if (handle.file != MPI_FILE_NULL) return handle.file;
  if (open_ == kMostOpen) close_oldest();
  const std::string& path = stream_.files()[index].path;
  if (const int code = MPI_File_open(comm_, path.c_str(), MPI_MODE_RDONLY, info_, &handle.file);
      code != MPI_SUCCESS) {
    handle.file = MPI_FILE_NULL;
    throw DataError(fmt::format("cannot open '{}': {}", path, mpi_text(code)),
                    "was it moved or deleted after the start? is it visible on every node?");
  }
  ++open_;
  if (echoed_.empty()) echo_hints(handle.file);
  return handle.file;
}

void MpiFiles::close_oldest() {
  Handle* oldest = nullptr;
  for (auto& handle : handles_)
    if (handle.file != MPI_FILE_NULL && (oldest == nullptr || handle.used < oldest->used))
      oldest = &handle;
  MPI_File_close(&oldest->file);
  --open_;
}

void MpiFiles::echo_hints(MPI_File file) {
  MPI_Info used = MPI_INFO_NULL;
  if (MPI_File_get_info(file, &used) != MPI_SUCCESS || used == MPI_INFO_NULL) return;
  int count = 0;
  MPI_Info_get_nkeys(used, &count);
  for (int i = 0; i < count; ++i) {
    char key[MPI_MAX_INFO_KEY + 1] = {}, value[MPI_MAX_INFO_VAL + 1] = {};
    int found = 0;
    MPI_Info_get_nthkey(used, i, key);
    MPI_Info_get(used, key, MPI_MAX_INFO_VAL, value, &found);
    if (found != 0) echoed_.emplace_back(key, value);
  }
  MPI_Info_free(&used);
}

void MpiFiles::require(int code, const MPI_Status& status, const FilePiece& piece) const {
  const std::string& path = stream_.files()[piece.file].path;
  if (code != MPI_SUCCESS)
    throw DataError(
        fmt::format("cannot read '{}' at byte {}: {}", path, piece.offset, mpi_text(code)));
  int got = 0;
  MPI_Get_count(&status, MPI_BYTE, &got);
  if (got != piece.bytes)
    throw DataError(
        fmt::format("'{}' gave {} of {} bytes at byte {}", path, got, piece.bytes, piece.offset),
        "it became shorter while in use; copy or prepare it again");
}

void MpiFiles::read(const FilePiece& piece) {
  MPI_Status status;
  const int code =
      MPI_File_read_at(open(piece.file), piece.offset, piece.to, piece.bytes, MPI_BYTE, &status);
  require(code, status, piece);
}

void MpiFiles::read_all(const FilePiece& piece) {
  MPI_Status status;
  const int code = MPI_File_read_at_all(open(piece.file), piece.offset, piece.to, piece.bytes,
                                        MPI_BYTE, &status);
  if (piece.bytes == 0) return;
  require(code, status, piece);
  // Open MPI's two-phase reading reports full counts past the end of a file.
  MPI_Offset size = 0;
  mpi_check(MPI_File_get_size(handles_[piece.file].file, &size), "MPI_File_get_size");
  if (size >= piece.offset + piece.bytes) return;
  throw DataError(fmt::format("'{}' ends at byte {}, before byte {}",
                              stream_.files()[piece.file].path, size, piece.offset + piece.bytes),
                  "it became shorter while in use; copy or prepare it again");
}

namespace {

// Readers that keep tokens in memory: one that preloads the stream, and one whose ranks share a
// window.

// Shared memory of the ranks of a node: each owns a part and sees all parts.
class NodeMemory {
 public:
  /// Collective over `node`, whose ranks must share memory; takes ownership of it. Parts may differ
  /// in size. With `contiguous` they are adjacent, else each begins on a page near its rank.
  NodeMemory(MPI_Comm node, std::size_t bytes, bool contiguous) : node_(node) {
    int size = 1;
    MPI_Comm_rank(node_, &rank_);
    MPI_Comm_size(node_, &size);
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "alloc_shared_noncontig", contiguous ? "false" : "true");
    char* mine = nullptr;
    const int code =
        MPI_Win_allocate_shared(static_cast<MPI_Aint>(bytes), 1, info, node_, &mine, &window_);
    MPI_Info_free(&info);
    if (code != MPI_SUCCESS)
      throw CommError(
          fmt::format("cannot allocate {} bytes of node-shared memory: {}", bytes, mpi_text(code)),
          "check the size and the free space of /dev/shm, or use data.reader 'own'");
    parts_.resize(static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
      MPI_Aint length = 0;
      int unit = 0;
      MPI_Win_shared_query(window_, rank, &length, &unit, &parts_[static_cast<std::size_t>(rank)]);
    }
    MPI_Win_lock_all(MPI_MODE_NOCHECK, window_);
    // First touch places the pages near their owner.
    if (bytes > 0) std::memset(mine, 0, bytes);
  }
  ~NodeMemory() {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized != 0) return;
    MPI_Win_unlock_all(window_);
    MPI_Win_free(&window_);
    MPI_Comm_free(&node_);
  }
  NodeMemory(const NodeMemory&) = delete;
  NodeMemory& operator=(const NodeMemory&) = delete;

  MPI_Comm node() const { return node_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(parts_.size()); }
  char* part(int rank) const { return parts_[static_cast<std::size_t>(rank)]; }
  /// To be called before and after the synchronisation that separates writing from reading.
  void fence() const { MPI_Win_sync(window_); }

 private:
  MPI_Comm node_;
  MPI_Win window_ = MPI_WIN_NULL;
  int rank_ = 0;
  std::vector<char*> parts_;
};

// The part of a rank in the window holds the number of its extents, the extents, and the tokens
// from a page boundary on. Readers fill the parts of the ranks that they serve; a rank uses its
// part in place.
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
    // Reader i is the first rank that it serves.
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

  // Waits until all requests are written and no rank uses the tokens of the previous call any more.
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
  bool alone_ = false;  // every rank reads for itself
  int first_served_ = 0, end_served_ = 0;
  std::vector<FilePiece> pieces_;
};

}  // namespace

std::unique_ptr<TokenReader> make_node_reader(const ReaderSetup& setup) {
  return std::make_unique<NodeReader>(setup);
}

namespace {

constexpr std::int64_t kBlockTokens = std::int64_t{1} << 24;

// Keeps the whole stream in memory: per rank, or (node reader, preloaded on the host) once per
// node.
class PreloadedReader : public TokenReader {
 public:
  explicit PreloadedReader(const ReaderSetup& setup)
      : setup_(setup), staging_(std::make_unique<char[]>(setup.limit)) {
    if (setup.options.kind == ReaderKind::node && setup.options.preload == Preload::host)
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
  void abandon() override {}  // reads wait for no other rank

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

  // Every rank of the node reads its share into one window.
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
