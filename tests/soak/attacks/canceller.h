// A client whose calls and streams are cancelled, or late, at random moments. Every byte that it stores carries its
// mark: no answer, whole or cut short, may show another's.
#ifndef SEINE_TESTS_SOAK_ATTACKS_CANCELLER_H_
#define SEINE_TESTS_SOAK_ATTACKS_CANCELLER_H_

#include <random>
#include <string>

#include "tests/soak/attacks/attacks.h"
#include "tests/soak/server/made_requests.h"

namespace seine::soak {

// One thread at a time uses it. Breaks and numbers go to `tally`; a call that ended too early is a fault.
class Canceller {
 public:
  // `number`: 0 to 15, of the clients of one server at a time; its mark follows from it.
  Canceller(const std::string& address, int number, uint32_t seed, Tally& tally);

  // One call of a random kind that ends by itself, then checks of all that is held.
  void Round();

 private:
  void Renew();
  int64_t SomeTokens() { return 1 + static_cast<int64_t>(random_() % 128); }
  void Ended(const grpc::Status& status, const char* what);
  void Append();
  void AppendStream();
  void Attend();
  void Decode();
  void Gather();
  void ReadBack();  // by calls that nobody cuts
  v1::GatherRequest SomeRows();
  void CheckRows(const v1::GatherResponse& rows);
  void CheckOutput(const v1::AttendAnswer& answer);

  std::mt19937 random_;
  const int number_;
  const uint8_t mark_;
  Tally& tally_;
  Client client_;
  v1::SequenceHandle handle_;
  int64_t at_ = 0;  // tokens that layer 0 is known to hold
};

}  // namespace seine::soak

#endif  // SEINE_TESTS_SOAK_ATTACKS_CANCELLER_H_
