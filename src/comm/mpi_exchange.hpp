#pragma once
// Point-to-point messages over MPI posted together, each exchange with requests of its own: any
// number of them (up to kMaxInFlight) is in flight side by side.
#include <array>
#include <span>
#include <vector>

#include "choir/comm/mpi_communicator.hpp"

namespace choir {

class MpiExchanges {
 public:
  /// Borrows `comm`. `label` is for messages; wait() adds its time to `traffic`. No single MPI call
  /// moves more than `limit` bytes.
  MpiExchanges(MPI_Comm comm, std::string label, std::size_t limit, CommTraffic& traffic);
  /// Allocates only when an exchange has more pieces than any before in its place (from 8 on).
  ExchangeRequest& start(std::span<const Message> messages);

 private:
  struct Piece {
    MPI_Request request = MPI_REQUEST_NULL;
    int bytes = 0, from = -1;  ///< of a receive
  };
  struct Operation final : ExchangeRequest {
    void do_wait() override;
    void do_wait_received() override;
    bool do_test() override;
    MpiExchanges* owner = nullptr;
    std::vector<Piece> pieces;
    bool free = true;
  };

  void post(const Message& message, std::vector<Piece>& pieces);
  void finish(Piece& piece);
  void check_size(const Piece& piece, const MPI_Status& status) const;

  MPI_Comm comm_;
  std::string label_;
  std::size_t limit_;
  CommTraffic& traffic_;
  std::array<Operation, Communicator::kMaxInFlight> ring_;
};

}  // namespace choir
