import { describeTrainerBackend } from "./trainer-backend.ts";
import { openNativeUnderTest } from "./trainer-backend-native.ts";

describeTrainerBackend("native", { open: () => openNativeUnderTest() });
