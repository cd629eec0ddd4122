import { faultPlan } from "../fakes/tinker-fault-plan.ts";
import { describeTrainerBackend } from "./trainer-backend.ts";
import { openTinkerUnderTest } from "./trainer-backend-tinker.ts";

describeTrainerBackend("tinker", { open: () => openTinkerUnderTest() });

describeTrainerBackend("tinker, SkyRL's dialect, with faults", {
  open: () => openTinkerUnderTest({ dialect: "skyrl", fault: faultPlan(1, 6) }),
});

describeTrainerBackend("tinker, verl's dialect, with faults", {
  open: () => openTinkerUnderTest({ dialect: "verl", fault: faultPlan(2, 6) }),
});
