// A page that is opened as a file may start no worker, and the theme's search wants one: so its script runs in a frame.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.body.appendChild(document.createElement("iframe"));
      frame.hidden = true;
      frame.contentDocument.open();
      frame.contentDocument.close();
      const inside = frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = frame.contentDocument.createElement("script");
      script.src = url;
      const ready = new Promise((loaded) => (script.onload = loaded));
      frame.contentDocument.body.append(script);
      this.postMessage = (data) => ready.then(() => inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
