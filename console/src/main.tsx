import { render } from "preact";
import { App } from "./app";
import { applyTheme, storedTheme } from "./theme";
import "./styles/base.css";
import "./styles/layout.css";
import "./styles/components.css";
import "./styles/forced-colors.css";
import "./styles/print.css";

applyTheme(storedTheme());
const root = document.getElementById("app");
if (root) render(<App />, root);
